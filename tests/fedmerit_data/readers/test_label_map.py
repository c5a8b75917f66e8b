import pytest

from fedmerit.errors import BadInput
from fedmerit_data.readers.label_map import parse_labels


def test_a_label_map_as_text():
    assert parse_labels("disc=1+2, cup=2") == {"disc": (1, 2), "cup": (2,)}
    assert parse_labels("gtv=GTV primary+ GTV_n1,rest=any") == {"gtv": ("GTV primary", "GTV_n1"), "rest": ()}
    assert list(parse_labels("cup=2,disc=1")) == ["cup", "disc"]
    assert parse_labels("prostate=any") == {"prostate": ()}
    assert parse_labels("disc=255,ignore=128+64") == {"disc": (255,), "ignore": (128, 64)}
    assert parse_labels("kidneys=left kidney+kidney_right") == {"kidneys": ("left kidney", "kidney_right")}


MALFORMED = {
    "": "'' is not NAME=VALUE",
    "disc": "'disc' is not NAME=VALUE; expected such as",
    "disc=1,": "'' is not NAME=VALUE",
    "disc=1.5": "'disc=1.5' is not",
    "disc=-1": "'disc=-1' is not",
    "disc=1+": "'disc=1\\+' is not",
    "=1": "'' is not a valid name",
    "2nd=1": "'2nd' is not a valid name",
    "../disc=1": "'../disc' is not a valid name",
    "disc=0": "disc has the value 0; 0 is the background",
    "disc=1+1": "disc has a value twice",
    "disc=1,disc=2": "disc is named twice; give all its values at once",
    "disc=1,cup=1": "cup and disc have the same values",
    "disc=1+2,cup=2+1": "cup and disc have the same values",
    "ignore=3": "none; expected at least one",
    "disc=1,ignore=any": "ignore needs values",
    "disc=any,ignore=3": "ignore needs values",
    "disc=one,ignore=one": "one is a value of disc and of ignore",
    "disc=1,ignore=1": "1 is a value of disc and of ignore",
}


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_label_map(text):
    with pytest.raises(BadInput, match=f"^labels.*{MALFORMED[text]}"):
        parse_labels(text)
