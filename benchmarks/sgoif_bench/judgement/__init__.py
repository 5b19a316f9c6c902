"""A corpus of judgements: what many runs on many data sets knew about their labels, and how well it is judged.

Runs are trained once, and what each knew is kept; it is then judged as often as needed, without training:

    sgoif-bench corpus --data ROOT --evidence DIR
    sgoif-bench judge --evidence DIR --out FILE.jsonl
    python -m sgoif_bench.judgement.table FILE.jsonl

A judge that has constants fits them on runs of other data sets than the one that is judged.
"""
