"""A federation on paper: what NVFlare's provisioning is given, and what of it cannot work."""

import importlib

import pytest

from fedmerit.errors import BadInput
from fedmerit_deploy.project import (
    CERTIFICATE_BUILDER,
    CONTEXT_BUILDER,
    PROJECT_FILE,
    VERSIONS_BUILDER,
    add_project_sites,
    default_organisation,
    make_project,
    organisations,
    read_project,
    remove_participants,
)

GOOD = {"sites": {"A": "clinic", "B": "lab"}, "server": "fl.clinic.org", "org": "clinic", "admins": {"a@b.org": "lead"}}


def builders(**changes):
    return [(one["path"].rpartition(".")[2], one.get("args")) for one in make_project(**GOOD, **changes)["builders"]]


def test_what_goes_into_kits_is_there_before_they_are_signed():
    names = ["WorkspaceBuilder", "StaticFileBuilder", "RequestedCertBuilder", "VersionsBuilder"]
    assert [name for name, _ in builders()] == [*names, "SignatureBuilder"]
    assert builders(encryption={"keys": "/keys"})[4:] == [
        ("ContextBuilder", {"keys": "/keys"}),
        ("SignatureBuilder", None),
    ]


@pytest.mark.parametrize("path", [CERTIFICATE_BUILDER, VERSIONS_BUILDER, CONTEXT_BUILDER])
def test_the_builders_of_ours_are_where_projects_say(path):
    if path == CONTEXT_BUILDER:
        pytest.importorskip("tenseal", reason="TenSEAL is not installed: pip install 'fedmerit[he]'")
    module, _, name = path.rpartition(".")
    assert hasattr(getattr(importlib.import_module(module), name), "build")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sites": {}}, "--sites: expected names such as A,B,C"),
        ({"sites": {"A ": "clinic"}}, "--sites: the site's name is 'A '; expected 1 to 63 letters"),
        ({"sites": {"server": "clinic"}}, "--sites: the site's name is 'server', which is reserved"),
        ({"sites": {"A": "my-clinic"}}, "organisation 'my-clinic' of site A: cannot be used; expected letters, digits"),
        ({"sites": {"A": "x", "a": "x"}}, "--sites: two names differ only in case"),
        ({"org": "x" * 64}, "has 64 characters; a certificate holds 63 at most"),
        ({"sites": {"fl": "x"}, "server": "fl"}, "site 'fl': is the server's name too"),
        ({"server": "10.0.0.256"}, "server '10.0.0.256': is no address"),
        ({"ports": (8002, 0)}, "port 0: expected 1 to 65535"),
        ({"admins": {"b.org": "lead"}}, "admin 'b.org': cannot be used; expected an e-mail address"),
        ({"admins": {"a@b.org": "boss"}}, "admin a@b.org: role 'boss' is unknown; expected one of "),
        ({"admins": {"a@b.org": "member"}}, "--admin: nobody could submit a job; give one the role project_admin or"),
    ],
)
def test_what_cannot_work_is_named(changes, words):
    with pytest.raises(BadInput) as found:
        make_project(**GOOD | changes)
    assert words in str(found.value)


def test_a_site_that_names_no_organisation_earns_for_itself():
    assert default_organisation("St_Mary_2") == "St_Mary_2"
    names = ["a_b", "a-b", "a--b", "a-_b", "x" * 63, "a" + "-" * 62, "a" + "-" * 61 + "_", "_" * 63]
    names += [default_organisation(name) for name in names[1:3]]  # what another's is called
    found = organisations(dict.fromkeys(names, ""))
    assert len(set(found.values())) == len(names)
    assert found["a-b"].startswith("a_b_")
    assert make_project(**GOOD | {"sites": found})["participants"][2]["org"] == found["a-b"]
    assert organisations({"a-b": ""}) == {"a-b": found["a-b"]}  # whoever else there is


@pytest.mark.parametrize(("stated", "before"), [({"A": "a_b"}, ()), ({}, ("a_b",))])
def test_the_organisation_of_others_is_no_sites_own(stated, before):
    with pytest.raises(BadInput, match="site a_b: other sites are of organisation a_b; state its own as a_b:ORGANI"):
        organisations({"a_b": "", **stated}, before)
    assert organisations({"a_b": "a_b", **stated}, before) == {"a_b": "a_b", **stated}


def test_further_sites_come_last_and_all_else_stays():
    before = make_project(**GOOD, name="trial", encryption={})
    after = add_project_sites(before, {"C": "clinic"})
    new = {"name": "C", "type": "client", "org": "clinic", "allow_log_streaming": False}
    assert after == before | {"participants": [*before["participants"], new]}
    assert len(before["participants"]) == 4
    for name in ("a", "C D", "fl.clinic.org"):
        with pytest.raises(BadInput):
            add_project_sites(before, {name: "clinic"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "not a project file .FileNotFoundError."),
        ("", "not a project file .TypeError."),
        ("a: [", "not a project file .ParserError."),
        ("[" * 20000, "not a project file .RecursionError."),
        ("participants: [{name: A}]", "not a project file .KeyError."),
        ("\xff\xfe".encode("latin-1"), "not a project file .UnicodeDecodeError."),
        ("participants: [{type: client, name: A}]", "names 0 servers; expected one"),
        ("participants: [{type: server, name: A}, {type: server, name: B}]", "names 2 servers; expected one"),
    ],
)
def test_what_is_no_project_is_named(tmp_path, text, words):
    if text is not None:
        (tmp_path / PROJECT_FILE).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BadInput, match=rf"project\.yml: {words}"):
        read_project(tmp_path)


@pytest.mark.parametrize(
    ("names", "words"),
    [(["C"], "no site or admin C"), (["fl.clinic.org"], "no site or admin fl"), (["a@b.org"], "nobody would be left")],
)
def test_who_cannot_be_taken_out(names, words):
    with pytest.raises(BadInput, match=words):
        remove_participants(make_project(**GOOD), names)
    left = remove_participants(make_project(**GOOD), ["A"])["participants"]
    assert [one["name"] for one in left] == ["fl.clinic.org", "B", "a@b.org"]
