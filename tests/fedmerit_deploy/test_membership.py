"""What a site learns of its membership, and how the server's main process answers."""

from types import SimpleNamespace

import pytest
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext

from fedmerit_deploy import revocation
from fedmerit_deploy.checks import check_machine
from fedmerit_deploy.membership import QUESTION, Membership
from fedmerit_deploy.provisioning import revoke
from fedmerit_deploy.revocation import REVOKED, ListedVerifier, RevocationCheck, Revocations

FINE = Membership(is_revoked=False, is_disabled=False, is_newest=True, clock=1000.0)


@pytest.mark.parametrize(
    ("changes", "now", "words"),
    [
        ({}, 1030.0, []),
        ({"is_revoked": True, "is_newest": False}, 1000.0, ["has revoked the certificate of this kit"]),
        ({"is_newest": False}, 1000.0, ["a newer kit of this site is in use"]),
        ({"is_disabled": True}, 1000.0, ["an admin has shut this site out"]),
        ({}, 1500.0, ["clock is 500 s ahead of the server's"]),
        ({"is_revoked": True}, 0.0, ["has revoked", "clock is 1000 s behind the server's"]),
    ],
)
def test_find_faults_says_in_a_sentence_each_what_is_wrong(changes, now, words):
    answer = Membership.read(FINE.model_copy(update=changes).model_dump_json())
    faults = list(answer.find_faults(now))
    assert len(faults) == len(words)
    for fault, word in zip(faults, words, strict=True):
        assert word in fault


@pytest.mark.parametrize("text", ["", "register_client unauthenticated", "[]", '{"is_revoked": true}'])
def test_other_words_of_a_server_are_no_answer(text):
    assert Membership.read(text) is None


def ask(kit, name, serial, event=EventType.CLIENT_REGISTER_PROCESSED, disabled=()):
    """The reason for a refusal that the server's part leaves in the context of a registration."""
    keeper = SimpleNamespace(id_verifier=ListedVerifier(Revocations(kit)))
    manager = SimpleNamespace(cred_keeper=keeper, is_client_disabled=lambda one: one in disabled)
    engine = SimpleNamespace(server=SimpleNamespace(client_manager=manager))
    context, peer = FLContext(), FLContext()
    peer.set_prop("__identity_name__", name, private=False, sticky=False)
    peer.set_prop(QUESTION, serial, private=False, sticky=False)
    context.set_peer_context(peer)
    context.get_engine = lambda: engine
    RevocationCheck().handle_event(event, context)
    return context.get_prop(FLContextKey.UNAUTHENTICATED, "")


def test_server_answers_by_its_list_and_by_the_last_proof(federation):
    from cryptography import x509

    folder = federation / "fedmerit" / "prod_00"
    server, serials = folder / "localhost", {}
    for name in ("site1", "site2"):
        pem = (folder / name / "startup" / "client.crt").read_bytes()
        serials[name] = str(x509.load_pem_x509_certificate(pem).serial_number)
    answers = [Membership.read(ask(server, name, serials[name])) for name in serials]
    assert [(one.is_revoked, one.is_disabled, one.is_newest) for one in answers] == [(False, False, True)] * 2
    (server / "local" / REVOKED).write_bytes(revoke(federation, ["site1"]).read_bytes())
    Revocations(server).register("site2", 1)
    first = Membership.read(ask(server, "site1", serials["site1"]))
    second = Membership.read(ask(server, "site2", serials["site2"], disabled=["site2"]))
    assert first.is_revoked
    assert (second.is_revoked, second.is_disabled, second.is_newest) == (False, True, False)
    assert revocation.Revocations(server).registered() == {"site2": 1}  # a question registers nothing


@pytest.mark.parametrize("serial", ["", "12a", "9" * 100, "٣"])
def test_what_is_no_serial_number_is_no_question(federation, serial):
    assert ask(federation / "fedmerit" / "prod_00" / "localhost", "site1", serial) == ""


def test_check_shows_the_servers_answer(ready, monkeypatch):
    from fedmerit_deploy import checks

    wrong = Membership(is_revoked=True, is_disabled=False, is_newest=True, clock=0.0)
    for said, state, words in ((None, "ok", "answers"), (wrong, "fail", "has revoked the certificate")):
        monkeypatch.setattr(checks, "ask_membership", lambda kit, said=said: said)
        lines = list(checks._check_membership(ready, "localhost:1"))
        assert lines[0][0] == state
        assert words in lines[0][1]
    assert check_machine(ready, offline=True)
