"""What the preflight looks at, on a machine that is ready. No process is started."""

from fedmerit.flare.deploy.preflight import preflight


def test_everything_is_looked_at_and_fine(ready):
    lines = preflight(ready, offline=True)
    after = ["encryption", "server", "device", "evaluations", "disk", "memory"]
    assert [line.what for line in lines] == ["versions", "certificate", "policy", "gate", *after]
    assert [line.what for line in lines if line.state == "fail"] == []
    assert {"versions", "certificate", "policy", "device"} <= {line.what for line in lines if line.state == "ok"}
