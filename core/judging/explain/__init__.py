"""Simple causes of a difference: fitted to half of a pair's rows, scored on the other half, named only above a bar.

A hypothesis is a function `(pair: PairRows) -> Iterator[Cause]` with few parameters. To add one: fit it to the first of
`scoring.halves`, let `scoring.score` undo it on the second, yield what `Score.cause` makes of a sentence, and list the
function in `causes.HYPOTHESES`. An observation yields a `Cause` without a share. Its test is a planted cause.
"""
