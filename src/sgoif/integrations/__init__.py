"""The monitor inside training frameworks, and its history in experiment trackers.

Nothing is imported here, since every part needs a package of its own: `sgoif.integrations.lightning`,
`sgoif.integrations.huggingface`, `sgoif.integrations.records`.
"""
