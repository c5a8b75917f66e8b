"""Helpers of these tests lie beside this file, where tests in folders find them."""
