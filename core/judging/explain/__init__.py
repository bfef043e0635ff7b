"""Simple causes of a difference: fitted to half of a pair's rows, scored on the other half, named only above a bar.

A hypothesis is a function `(pair: PairRows) -> Iterator[Cause]` with few parameters, in the module of its kind. To add
one: fit it to the first of `scoring.halves`, let `scoring.score` undo it on the second, yield what `Score.cause` makes
of a sentence, and list the function in `hypotheses.HYPOTHESES`; `hypotheses.causes_of` knows which cause brings another
with it. An observation yields a `Cause` without a share. Its test is a planted cause in tests/core/judging.
"""
