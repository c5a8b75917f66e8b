"""In processes that a test starts with this folder on their path, the methods of the tests are known."""

import contract_methods

contract_methods.register()
