"""The loops: each file as a user of that library or recipe would write it, in our own words.

A loop is a function of a `Study`. Four lines are ours, and all of them are documented: `split_holdout`, `indexed`, the
monitor and its step. The monitor has default settings; `study.monitor` makes it where the study asks for one, and else
something that does nothing, so that both trainings run the same lines.
"""
