"""The rating that follows from a site's answer: the server counts it and records it, and the site's log has it too."""

from fedmerit.schema.messages import Evaluated
from fedmerit.schema.records import RatingRecord
from fedmerit.schema.scores import mean_dice


def rate(answer: Evaluated, soft: bool = False) -> RatingRecord:
    """Return the rating that an answer with overlaps of k models gives; ``soft``: their scores are soft Dice."""
    known = [{one.case for one in of_model if one.dice is not None} for of_model in answer.overlaps]
    more = {"losses": answer.losses.double().tolist()} if answer.losses.numel() else {}
    if soft:
        cases = sorted(known[0])
        names = {one.case: one.patient or f"case {one.case}" for one in answer.overlaps[0]}
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names[case] for case in cases))}
        more["soft"] = [
            [mean_dice([one for one in of_model if one.case == case]) for case in cases] for of_model in answer.overlaps
        ]
        more["patients"] = [numbers[names[case]] for case in cases]
    return RatingRecord(dice=list(map(mean_dice, answer.overlaps)), cases=list(map(len, known)), **more)
