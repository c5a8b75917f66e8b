"""Errors of the caller's own sites: the last one of each, equal ones once."""

from fedmerit.engines.site_errors import describe_errors, keep_error, read_errors, warn_of_errors
from fedmerit.errors import BadInput


def failed(site: str, text: str) -> BadInput:
    try:
        raise BadInput(f"site {site}: {text}")
    except BadInput as error:
        return error


def test_errors_of_sites_are_shown_once_without_frames(tmp_path, capsys):
    for site, text in (("site-1", "old"), ("site-1", "no metric"), ("site-2", "no metric"), ("site-3", "no model")):
        keep_error(tmp_path / "sites" / site / "errors.log", failed(site, text))
    shown = ["site-1, site-2: no metric", "site-3: no model"]
    assert describe_errors(read_errors(tmp_path, 0.0)) == shown
    warn_of_errors(tmp_path, 0.0)
    assert capsys.readouterr().err.splitlines() == ["sites without some of their answers:", *shown]


def test_run_without_errors_logs_nothing(tmp_path, capsys):
    warn_of_errors(tmp_path, 0.0)
    assert not capsys.readouterr().err
