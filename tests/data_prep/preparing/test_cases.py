from data_prep.kinds import KINDS
from data_prep.preparing.cases import Work, raw_files
from data_prep.raw import RawCase

KIND = "prostate-multisite"


def test_every_raw_file_counts(tmp_path):
    for name in ("a.mhd", "a.raw", "b.raw", "series/1.dcm", "series/2.dcm", "m1.png", "m2.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")

    def files(image, label, *more):
        case = RawCase("a", "a", tmp_path / image, tmp_path / label, tuple(tmp_path / name for name in more))
        work = Work(KINDS[KIND], tmp_path, "site", case, tmp_path / "out", 16, None, None)
        return [path.as_posix() for path in raw_files(work)]

    assert files("a.mhd", "m1.png", "m2.png") == ["a.mhd", "a.raw", "m1.png", "m2.png"]
    assert files("series", "m1.png") == ["m1.png", "series/1.dcm", "series/2.dcm"]
