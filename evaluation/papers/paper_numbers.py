"""Figures that papers printed, typed from their tables, to stand beside what is measured here.

Rows are named as `fedmerit compare --methods` names methods. FedCE: Jiang et al. 2023; CGSV: Xu et al. 2021; FedAVE:
Wang et al. 2024; FedSAC: Wang et al., KDD 2024; CYCle: Tastan et al. 2025.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from evaluation.formats import Table

_CELL = re.compile(r"(?P<value>-|-?[\d.]+(e-?\d+)?)(±(?P<spread>[\d.]+)|\((?P<highest>[\d.]+)\))?")


@dataclass(frozen=True)
class Published:
    """One printed table: a line per row, its name first; ``-`` where nothing is printed.

    A cell is a number, with a deviation (``86.7±0.3``), or a mean with the highest (``91(92)``).
    """

    where: str  # Table 1
    what: str  # with the unit
    groups: Mapping[str, str]  # what columns belong to, and their names, with _ for a blank
    rows: str
    first: str = "Method"  # what a row is

    def of(self, group: str) -> Table:
        """The columns of one group under their own names; of a mean with the highest, two."""
        return self._table({group: ""})

    def table(self, name: str, groups: Sequence[str] | None = None) -> Table:
        """All columns, or those of some groups, each with the name of its group."""
        chosen = list(self.groups) if groups is None else groups
        return self._table({group: f", {group}" * bool(group) for group in chosen}, name)

    def _table(self, suffixes: Mapping[str, str], name: str = "") -> Table:
        places = [(group, column.replace("_", " ")) for group, names in self.groups.items() for column in names.split()]
        lines = [line.split() for line in self.rows.strip().splitlines()]
        frame: dict[str, list[str] | list[float]] = {self.first: [line[0].replace("_", " ") for line in lines]}
        spread = dict(frame)
        for place, (group, column) in enumerate(places, start=1):
            if group not in suffixes:
                continue
            cells = [_CELL.fullmatch(line[place]) for line in lines]
            heading = f"{column}{suffixes[group]}"
            frame[heading] = [_number(cell, "value") for cell in cells]
            spread[heading] = [_number(cell, "spread") for cell in cells]
            if any(cell and cell["highest"] for cell in cells):
                frame[f"{heading}, highest"] = [_number(cell, "highest") for cell in cells]
                spread[f"{heading}, highest"] = [math.nan] * len(lines)
        caption = f"{self.where} of the paper: {self.what}"
        return Table(name, caption, pd.DataFrame(frame), pd.DataFrame(spread), decimals=2)


def _number(cell: re.Match[str] | None, part: str) -> float:
    if cell is None:
        raise ValueError("a cell of a published table is no number")
    return math.nan if cell[part] in (None, "-") else float(cell[part])


_TEN = {
    "MNIST, 10 agents": "UNI POW CLA",
    "MNIST, 20 agents": "UNI POW CLA",
    "CIFAR-10, 10 agents": "UNI POW CLA",
    "MR, 5 agents": "POW",
    "SST, 5 agents": "POW",
}
_FIVE = {"MNIST, 5 agents": "UNI POW CLA", "CIFAR-10, 5 agents": "UNI POW CLA"}
_SPLITS = dict.fromkeys(("MNIST", "CIFAR-10", "EMNIST"), "POW CLA DIR(0.1) DIR(0.2) DIR(0.3)")

FEDCE_6_FUNDUS = Published(
    "Tables 1 and 6",
    "Dice [%], mean ± std over 3 seeds",
    {"retinal fundus": "1 2 3 4 5 6 Avg. Std."},
    """
standalone         86.69±0.32 85.51±1.41 86.21±0.69 89.91±0.15 79.77±1.59 90.98±0.06 86.51  3.95
fedavg             81.34±3.08 85.21±0.15 83.28±1.60 88.16±0.45 40.81±6.57 90.79±0.46 78.27 18.66
qfedavg            86.24±0.80 86.97±0.20 87.37±0.66 89.13±0.40 44.68±3.42 90.72±0.15 80.85 17.80
cffl:reward=global 85.72±2.17 86.29±1.32 86.96±0.58 88.62±1.95 41.12±2.35 90.16±0.95 79.81 19.02
fedci              87.02±1.47 86.93±0.41 87.35±0.40 88.53±0.39 40.99±7.94 90.22±0.14 80.17 19.24
cgsv:reward=global 83.46±1.53 85.57±0.15 85.47±0.79 88.48±0.71 33.79±2.59 91.01±0.65 77.96 21.80
fedce              86.73±1.46 87.45±0.14 87.51±0.57 89.26±0.32 57.30±1.32 90.25±0.15 83.08 12.70
fedce:combine=plus 87.22±0.61 87.36±0.60 87.93±0.56 89.66±0.29 54.42±1.84 90.92±0.28 82.92 14.03
""",
)
FEDCE_6_PROSTATE = Published(
    "Tables 1 and 6",
    "Dice [%], mean ± std over 3 seeds",
    {"prostate MRI": "1 2 3 4 5 6 Avg. Std."},
    """
standalone         91.23±0.40 84.59±0.55 87.57±0.86 87.37±0.32 86.70±0.05 89.25±0.13 87.79 2.26
fedavg             91.10±0.10 84.59±0.44 89.02±0.37 89.09±0.75 83.87±0.42 89.27±0.10 87.82 2.90
qfedavg            90.94±0.25 85.60±0.56 89.28±0.37 89.18±0.85 84.27±0.32 88.67±0.09 87.99 2.52
cffl:reward=global 91.01±0.67 85.49±0.72 89.24±0.39 88.98±0.86 82.11±2.20 88.17±0.41 87.50 3.20
fedci              91.21±0.68 85.40±0.74 89.49±0.57 88.37±0.94 83.96±0.49 88.49±0.28 87.82 2.68
cgsv:reward=global 91.15±0.38 84.90±0.66 89.27±0.35 88.09±0.93 83.47±0.34 89.16±0.25 87.67 2.91
fedce              91.43±0.33 85.79±0.55 89.21±0.46 89.13±0.59 85.68±0.29 88.62±0.10 88.31 2.22
fedce:combine=plus 91.18±0.30 85.54±0.19 89.59±0.33 89.22±0.82 84.99±0.44 88.79±0.05 88.22 2.43
""",
)
FEDCE_2 = Published(
    "Table 2",
    "performance fairness",
    {"retinal fundus": "Pearson p Euclidean", "prostate MRI": "Pearson p Euclidean"},
    """
fedavg             88.82 1.8e-2 38.94 88.67 1.9e-2 3.31
qfedavg            87.02 2.4e-2 38.96 91.69 1.0e-2 2.61
cffl:reward=global 84.53 3.4e-1 38.96 92.47 8.3e-3 2.46
fedci              85.69 2.9e-2 48.42 93.57 6.1e-3 2.25
cgsv:reward=global 87.47 2.3e-2 49.47 87.71 2.2e-2 3.45
fedce              88.94 1.8e-2 24.57 98.25 4.6e-4 1.09
fedce:combine=plus 89.11 1.7e-2 24.69 97.15 1.2e-3 1.41
""",
)
FEDCE_3 = Published(
    "Table 3",
    "collaboration fairness",
    {"retinal fundus": "Pearson p Euclidean Cosine", "prostate MRI": "Pearson p Euclidean Cosine"},
    """
fedavg             -39.76 4.4e-1 0.55 0.26  3.01 9.5e-1 0.62 0.52
qfedavg             63.28 1.8e-1 0.31 0.57 63.35 1.8e-1 0.59 0.57
cffl:reward=global   0.90 9.9e-1 0.45 0.47 75.44 8.3e-2 0.49 0.74
fedci              -12.36 8.2e-1 0.37 0.53 -0.31  1.0e0 0.61 0.53
cgsv:reward=global -44.50 3.8e-1 0.57 0.22 -1.85 9.7e-1 0.63 0.50
fedce               94.93 3.8e-3 0.17 0.82 93.12 6.9e-3 0.49 0.75
fedce:combine=plus  96.34 2.0e-3 0.22 0.73 93.53 6.1e-3 0.53 0.69
""",
)
FEDCE_4 = Published(
    "Table 4",
    "leave-one-out of retinal fundus, drop as a positive number",
    {
        "": "Dice_without_it,_disc_[%] Drop,_disc_[points] Dice_without_it,_cup_[%] Drop,_cup_[points] "
        "Performance_contribution_[%] Training_images Sample_contribution_[%]"
    },
    """
1          86.84 2.59 74.06 1.44 15.00  50  5.52
2          88.26 1.17 74.21 1.29  9.50  98 10.83
3          88.46 0.97 73.25 2.25 12.00  47  5.19
4          87.41 2.02 73.58 1.92 15.00 230 25.41
5          82.52 6.91 70.66 4.84 44.00  80  8.84
6          89.43 0.00 74.05 1.45  5.50 400 44.20
nobody_out 89.43    - 75.50    -     -   -     -
""",
    "Client",
)
FEDCE_5 = Published(
    "Table 5",
    "leave-one-out of prostate MRI, drop as a positive number",
    {
        "": "Dice_without_it_[%] Drop_[points] Performance_contribution_[%] Training_images Sample_contribution_[%]",
    },
    """
1          84.90  3.43 20.13 381 16.27
2          87.95  0.37  2.19 238 10.16
3          87.91  0.42  1.74 278 11.87
4          87.97  0.36  2.09 242 10.33
5          76.67 11.65 68.47 389 16.61
6          87.53  0.80  4.68 814 34.76
nobody_out 88.32     -     -   -     -
""",
    "Client",
)
CGSV_1 = Published(
    "Table 1",
    "test accuracy [%], mean over agents (highest)",
    _TEN,
    """
standalone    91(91) 88(92) 53(92) 91(91) 89(92) 48(90) 46(47) 43(49) 31(44) 47(56) 31(34)
fedavg        93(94) 92(94) 53(93) 93(93) 92(94) 49(92) 48(48) 47(50) 32(47) 51(63) 33(35)
qfedavg       85(91) 27(45) 44(64) 88(91) 48(53) 40(59) 41(46) 36(36) 22(28) 12(18) 23(25)
cffl          90(92) 85(90) 34(44) 91(93) 88(91) 39(46) 39(41) 35(45) 22(40) 44(53) 31(32)
eci           94(94) 92(94) 53(94) 94(94) 92(94) 49(92) 49(49) 47(51) 31(46) 56(61) 33(34)
dw            93(94) 92(94) 53(93) 93(93) 92(94) 49(92) 48(48) 47(50) 32(47) 51(62) 33(35)
rr            94(95) 95(95) 64(72) 94(95) 94(95) 50(56) 47(59) 49(51) 26(29) 63(65) 36(36)
eu            94(94) 94(94) 54(94) 94(94) 94(94) 49(92) 49(49) 49(51) 32(46) 54(59) 34(36)
cgsv          96(97) 94(95) 74(95) 95(96) 96(97) 65(93) 61(62) 60(62) 35(54) 62(76) 35(36)
cgsv:beta=1.2 94(95) 95(95) 75(95) 96(96) 96(97) 65(93) 61(62) 60(62) 35(54) 62(75) 34(37)
cgsv:beta=1.5 97(97) 95(95) 75(95) 96(97) 94(95) 65(93) 61(62) 59(62) 35(54) 62(74) 35(37)
cgsv:beta=2   96(96) 95(96) 73(94) 97(97) 95(96) 66(95) 62(62) 61(62) 36(54) 62(75) 35(37)
""",
)
CGSV_5 = Published(
    "Table 5",
    "test accuracy [%], mean over agents (highest)",
    _FIVE,
    """
standalone    91(91) 87(94) 50(91) 44(46) 42(52) 29(44)
fedavg        93(93) 91(95) 50(92) 46(47) 46(52) 30(45)
qfedavg       82(85) 59(78) 49(84) 31(32) 31(34) 19(24)
cffl          24(39) 21(37) 27(28) 44(45) 40(49) 26(43)
eci           93(94) 94(95) 52(92) 46(47) 44(44) 30(41)
dw            93(93) 91(95) 50(92) 46(47) 46(52) 30(45)
rr            94(95) 95(95) 67(73) 40(45) 49(57) 23(32)
eu            94(94) 93(95) 50(92) 47(48) 48(52) 30(45)
cgsv          96(97) 96(97) 72(93) 57(57) 56(57) 31(48)
cgsv:beta=1.2 96(97) 96(97) 73(94) 57(57) 56(57) 31(48)
cgsv:beta=1.5 96(97) 96(97) 76(94) 57(57) 56(57) 31(48)
cgsv:beta=2   97(97) 96(97) 79(94) 57(57) 56(58) 31(48)
""",
)
CGSV_2 = Published(
    "Table 2",
    "100 x Pearson of standalone and final accuracy",
    _TEN,
    """
fedavg        -45.60 55.24  24.12   0.85 -32.58 40.83  18.47 97.48 98.75 48.68  57.50
qfedavg       -44.73 39.00  22.38 -22.01  38.71 48.07 -17.64 51.33 94.06 56.43 -75.92
cffl           83.57 91.80  81.24  82.52  94.70 85.71  78.25 72.55 81.31 96.85  93.34
eci            85.26 99.83  99.98  80.95  99.41 95.21  75.85 79.50 99.55 97.69  95.00
dw             89.15 98.93  65.34  86.94  99.63 35.21 -23.14 91.97 45.45 99.20  97.12
rr             83.77 71.17 -26.75 -18.64  25.47 95.86  30.67  0.70 90.67 44.16 -25.11
eu             84.25 98.25  99.82  80.55  97.77 99.97  78.25 94.24 94.95 97.58  93.21
cgsv           94.03 95.74  94.54  84.47  96.39 97.23  98.80 98.78 99.89 96.01  98.20
cgsv:beta=1.2  94.75 97.28  96.23  90.52  97.72 95.21  91.07 91.59 99.82 96.12  98.47
cgsv:beta=1.5  96.34 86.99  95.37  82.68  90.94 98.75  93.55 93.78 95.89 95.32  97.88
cgsv:beta=2    94.66 91.20  95.38  96.90  91.33 94.32  89.80 88.78 93.39 92.22  95.74
""",
)
CGSV_6 = Published(
    "Table 6",
    "100 x Pearson of standalone and final accuracy",
    _FIVE,
    """
fedavg        -18.6  25.47  95.01 18.47 97.48  98.75
qfedavg       26.46  47.26  96.07  5.53 33.25  97.60
cffl          30.76  18.06 -23.04 66.21 63.35 -13.94
eci           37.18  62.13  96.41 85.43 97.86  98.45
dw            -33.1  99.35  12.11 80.64 99.17  99.90
rr            -47.5  94.84  81.36 74.43 -23.7  97.17
eu            71.63  70.15  91.57 96.36 99.71  99.91
cgsv          83.53  99.57  98.62 85.32 95.04  99.70
cgsv:beta=1.2 75.84  99.46  97.67 78.35 95.81  99.73
cgsv:beta=1.5 76.92  99.57  95.37 81.05 95.56  99.72
cgsv:beta=2   21.16 -33.99  97.72 99.22 99.89  99.97
""",
)
CGSV_7 = Published(
    "Table 7",
    "100 x Pearson of reputation and final accuracy",
    _TEN,
    """
fedavg        -10.54  45.13  33.89  77.80  62.19  55.45  56.21  45.77  77.18 45.54  -7.05
qfedavg       -86.23 -15.75  67.98 -54.10 -35.45  12.54  61.78  36.55 -58.45 49.53 -93.94
cffl           85.89  38.64  15.80 -44.25   5.62 -16.38  41.76 -54.63  45.32 19.00  19.45
eci            44.17  85.74  91.15  79.03  89.69  91.81  80.67  89.57  97.30 84.58  93.12
dw              0.22  88.64 -40.55  65.21  91.77  73.14 -10.25  87.25   9.27 73.53  72.07
rr              3.17  75.12  78.15  -3.33  86.43  91.88  43.04 -17.31  84.95 -15.5  -6.43
eu             49.44  79.85  83.78  55.27  91.63  85.35  89.89  93.02  87.19 87.88  93.21
cgsv           90.49  94.68  77.27  93.20  92.89  94.58  82.66  92.75  94.89 96.01  94.31
cgsv:beta=1.2  89.74  96.28  82.95  90.65  96.99  93.42  78.99  93.41  95.96 96.12  90.00
cgsv:beta=1.5  80.23  91.40  93.60  90.89  90.31  93.66  76.42  92.89  89.52 95.32  95.11
cgsv:beta=2    82.36  91.03  88.45  74.88  87.44  91.20  72.71  89.63  84.92 85.01  97.49
""",
)
CGSV_8 = Published(
    "Table 8",
    "100 x Pearson of reputation and negative training loss",
    _TEN,
    """
fedavg         68.68 86.73  96.01  83.05 87.35  84.03 55.84  83.57  95.33 87.26 73.53
qfedavg        48.04 60.71  48.68   5.78 30.44 -10.48 12.65  88.00 -55.00 99.39 94.39
cffl          -52.81 -6.07 -57.21 -48.42 13.13  -7.90  3.55 -11.76  41.22 33.30 44.33
eci            71.79 92.97  82.10  82.10 78.01  58.35 84.90  85.81  93.81 95.10 82.75
dw             68.12 95.13  95.59  59.05 72.13  85.23 49.31  90.17  95.36 88.87 73.12
rr             46.52 87.84  96.65  31.99 92.73  91.20 16.13  85.28  97.02 87.97 73.56
eu             71.59 87.32  96.11  82.14 86.08  84.00 61.53  83.31  95.12 88.73 73.23
cgsv           91.64 92.26  96.84  89.47 94.78  96.82 84.85  94.59  90.13 90.44 91.92
cgsv:beta=1.2  90.36 91.94  91.19  88.87 93.28  96.41 83.84  90.94  90.16 90.05 97.54
cgsv:beta=1.5  91.03 93.33  92.27  88.21 92.11  91.39 84.43  90.51  90.33 89.54 89.84
cgsv:beta=2    85.02 88.61  94.88  87.51 90.09  92.36 78.95  88.84  90.65 88.72 94.64
""",
)
CGSV_3 = Published(
    "Table 3",
    "time overhead [s]",
    {"MNIST": "5 10 20", "CIFAR-10": "5 10", "MR": "5", "SST": "5"},
    """
fedavg     1.17     1.05     4.29    1.66     7.41    1.3   1.31
qfedavg    6.14     4.97    91.20   97.28    58.94  90.01  82.85
cffl      32.15    21.79   500.03  570.12   302.44 479.12 487.71
eci     2377.33 11937.80 23749.06 3571.75 58835.83 422.85 801.20
dw         0.89     0.79     1.60    1.21     5.29   0.99   0.98
rr         0.89     0.82     1.60    3.31     5.41   1.01   0.99
eu         0.89     0.81     1.61    1.22     5.33   1.01   0.99
cgsv       6.34     4.94    94.30   98.39    54.94  89.81  82.87
""",
)
FEDAVE_2 = Published(
    "Table 2",
    "100 x Pearson of standalone and final accuracy, 10 agents",
    _SPLITS,
    """
fedavg 49.47 64.17 20.73  6.52 50.68 -20.66 88.92 -30.73 86.88 79.02 -4.18 71.61 23.38 37.23 13.72
cffl   95.11 99.82     -     -     -  79.95 99.74      -     -     - 74.98 87.43     -     -     -
cgsv   91.20 92.32 66.81 71.54 93.29  95.48 95.46  77.45 80.33 71.79 99.21 79.76 51.34 51.81 38.45
fedave 97.59 97.79 93.62 84.22 94.78  99.33 97.89  74.40 98.36 91.87 95.48 89.77 81.24 75.57 69.69
""",
)
FEDAVE_3 = Published(
    "Table 3",
    "highest test accuracy [%], 10 agents",
    _SPLITS,
    """
standalone 94.79 92.19 65.17 71.64 85.73 48.66 43.13 30.80 33.25 38.03 88.07 85.14 43.94 55.62 70.42
fedavg     97.67 95.87 98.74 98.76 98.94 59.94 52.40 60.77 61.23 62.53 92.26 90.24 89.79 89.33 89.93
cffl       91.78 88.35     -     -     - 44.20 48.66     -     -     - 86.87 81.72     -     -     -
cgsv       96.00 91.40 96.09 98.17 98.80 58.13 41.49 33.35 44.86 49.31  91.6 89.77 87.68 88.41  87.8
fedave     97.60 93.23 96.59 98.76 98.74 59.91 50.82 53.78 55.99 54.42 92.06 90.07 88.19 87.07  89.4
""",
)
FEDAVE_4 = Published(
    "Table 4",
    "100 x Pearson of standalone and final accuracy without what FedAVE knows of distributions, 10 agents",
    {"MNIST": "POW CLA DIR(0.1) DIR(0.2) DIR(0.3)"},
    """
fedave:distributions=none       39.42 81.03 64.64 26.87 56.67
fedave:distributions=quota      97.24 93.43 92.89 67.08 82.69
fedave:distributions=reputation 92.21 97.65 64.87 62.92 85.53
fedave                          97.59 97.79 93.62 84.22 94.78
""",
)
_SPLIT_AMONG_5 = (
    "Homogeneous",
    "Dirichlet (0.5)",
    "Imbalanced (0.8, 1)",
    "Imbalanced (0.35, 2)",
    "Imbalanced (0.6, 1)",
)
_CYCLE = dict.fromkeys(_SPLIT_AMONG_5, "MVA_[%] MCG_[points] CGS_[points]")
CYCLE_1 = Published(
    "Table 1, upper half",
    "accuracy, gain over training alone and its spread, CIFAR-10, ResNet18, 5 participants",
    _CYCLE,
    """
fedavg 90.60 7.20 0.48 88.76 21.40 4.31 90.17 26.35 14.51 90.34 13.12 9.61 90.16 16.28 9.11
vpdl   84.98 1.58 0.71 74.27  6.91 2.31 67.18  3.36  3.58 78.71  1.49 4.01 75.43  1.55 2.45
cycle  86.33 2.93 0.32 76.93  9.57 2.07 69.26  5.44  2.56 81.12  3.89 2.65 76.72  2.83 1.38
""",
)
CYCLE_1_CNN = Published(
    "Table 1, lower half",
    "accuracy, gain over training alone and its spread, CIFAR-10, the network of CGSV, 5 participants",
    _CYCLE,
    """
cffl  62.65  2.21 0.87 49.04 2.49 2.35 58.66 3.48  4.39 65.08  9.99  9.95 65.20 14.35  9.79
rffl  61.50  1.05 0.95 48.52 1.96 1.63 56.27 1.08  2.45 58.51  3.43  7.46 51.35  0.50  6.74
cgsv  63.27  2.83 0.94 54.45 7.90 3.40 55.96 0.78  9.32 61.99  6.91 11.34 61.34 10.49 11.23
cycle 71.95 11.51 0.58 51.21 4.65 1.11 61.80 6.62  2.79 68.26 13.17  7.12 64.93 14.08  6.22
""",
)
CYCLE_7 = Published(
    "Table 7",
    "accuracy [%] of each participant, the fifth with flipped labels",
    {"": "1 2 3 4 5 Mean_of_the_others"},
    """
standalone    83.42 83.67 83.15 83.13 83.63 83.34
none_flipped  86.12 87.03 86.33 85.62 86.10 86.28
0.2_flipped   84.95 84.50 84.50 86.45 60.95 85.10
0.5_flipped   84.25 84.65 84.65 83.25 55.80 84.20
1.0_flipped   83.90 84.50 83.95 85.10 10.75 84.36
""",
    first="Labels",
)
_SCENES = dict.fromkeys(("CIFAR-10", "SVHN", "Fashion MNIST"), "POW CLA DIR(1) DIR(2) DIR(3)")
FEDSAC_1 = Published(
    "Table 1",
    "100 x Pearson of standalone and final accuracy, means over 5 seeds, 10 clients",
    _SCENES,
    """
fedavg  14.55 84.68 10.77 15.06 68.93 -19.24 71.42 58.56 50.95 31.43 -19.83 78.44 17.94 60.36 76.09
qfedavg 34.91 98.74 90.89 89.01 73.02  67.97 93.05 82.11 86.87 89.41  42.69 88.99 73.19 83.93 79.99
cffl    93.55 89.99 29.90 81.82 59.86  96.38 95.63 46.91 38.58 31.35  90.94 86.50 85.90 85.09 71.10
cgsv    90.78 91.04 63.29 84.59 84.75  90.99 87.22 72.09 72.19 76.31  95.34 73.65 82.91 82.91 84.95
fedave  85.50 92.80 58.43 85.82 88.61  92.68 92.77 82.42 64.83 79.38  86.98 86.36 79.51 87.99 67.62
fedsac  98.80 99.06 99.14 95.73 97.01  99.44 99.74 96.09 96.48 98.32  96.35 98.93 99.23 97.71 98.62
""",
)
FEDSAC_2 = Published(
    "Table 2",
    "highest test accuracy [%], means over 5 seeds, 10 clients",
    _SCENES,
    """
standalone 41.23 37.49 33.78 33.54 31.89 60.02 52.05 41.41 58.07 61.11 84.36 82.52 64.19 67.39 74.29
fedavg     48.36 42.64 48.84 49.49 49.72 74.16 68.25 77.75 78.17 81.35 87.64 85.42 87.32 87.27 88.25
qfedavg    46.22 41.40 35.00 37.41 37.81 69.61 54.71 34.15 44.69 56.92 85.44 82.93 65.51 69.61 78.96
cffl       47.94 42.12 44.44 48.44 47.56 72.68 69.66 75.89 75.21 77.01 87.40 85.29 86.16 87.23 87.11
cgsv       34.60 39.33 47.22 44.12 39.31 65.92 65.96 73.00 75.16 77.42 83.16 82.41 85.03 84.73 76.51
fedave     46.51 35.18 46.60 39.20 40.60 70.80 65.10 73.44 73.43 75.48 86.18 79.86 76.66 80.90 67.74
fedsac     48.61 44.16 49.06 50.01 49.85 74.84 70.51 78.06 78.55 81.95 87.88 85.61 87.85 87.54 88.38
""",
)
FEDSAC_3 = Published(
    "Table 3",
    "100 x Pearson of standalone and final accuracy, 10 clients",
    _SCENES,
    """
fedsac:importance=equal  79.99 96.47 10.93 43.81 -14.61 96.88 94.88 31.86 64.94 82.58 91.05 96.09 84.57 79.14 65.53
fedsac:aggregation=plain 98.64 98.13 99.22 84.81  83.59 99.00 99.20 95.66 96.05 87.65 93.72 97.45 97.32 27.40 91.43
fedsac                   98.80 99.06 99.14 95.73  97.01 99.44 99.74 96.09 96.48 98.32 96.35 98.93 99.23 97.71 98.62
""",
)
FEDSAC_4 = Published(
    "Table 4",
    "highest test accuracy [%], 10 clients",
    _SCENES,
    """
fedsac:importance=equal  47.68 42.46 40.02 47.00 44.09 69.98 66.95 66.25 68.14 74.02 87.48 85.00 70.99 73.13 83.43
fedsac:aggregation=plain 48.03 43.62 48.23 49.46 48.61 73.81 68.91 77.35 72.89 80.46 87.74 85.95 86.90 85.72 86.74
fedsac                   48.61 44.16 49.06 50.01 49.85 74.84 70.51 78.06 78.55 81.95 87.88 85.61 87.85 87.54 88.38
""",
)
FEDSAC_7 = Published(
    "Table 7",
    "highest test accuracy [%], 10 clients",
    {"CIFAR-10": "POW DIR(1) DIR(2) DIR(3)"},
    """
fedsac:beta=2  49.23 49.66 50.60 51.37
fedsac         48.43 49.10 50.01 49.85
fedsac:beta=10 48.61 49.06 47.08 49.04
fedsac:beta=20 46.53 46.98 43.50 46.03
""",
)
