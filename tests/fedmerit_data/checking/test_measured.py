from itertools import chain

import pytest
from site_folders import edit, space

from fedmerit_data.check import examine
from fedmerit_data.checking.findings import Severity


@pytest.mark.parametrize(
    "spacing", [None, [2.5, 2.5], [0, 2.5, 2.5], ["3", 2.5, 2.5], [float("nan"), 2.5, 2.5], "none"]
)
def test_volumes_are_not_judged_where_the_spacing_is_not_known(sites, spacing):
    space(sites, spacing)
    (finding,) = examine(sites).findings
    assert (finding.kind, finding.severity, finding.site) == ("unknown volume", Severity.note, "HK")
    assert finding.detail == "1 of 12 cases"


def test_site_folders_from_before_spacings_were_noted(sites):
    def before(lists):
        for entry in chain.from_iterable(lists.values()):
            entry.pop("spacing")

    for site in ("HK", "UCL"):
        edit(sites / site / "datalist.json", before)
    assert [(item.kind, item.detail) for item in examine(sites).findings] == [("unknown volume", "12 of 12 cases")] * 2
