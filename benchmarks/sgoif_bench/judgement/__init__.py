"""A corpus of judgements: what many runs on many data sets knew about their labels, and how well it is judged.

python -m sgoif_bench.judgement.collect --data ROOT --out DIR     # train, and keep what each run knew
python -m sgoif_bench.judgement.judge --evidence DIR --out FILE.jsonl   # judge it again and again, without training
"""
