"""Other libraries for training-data attribution, one short adaptor each; none of them is needed by anything else here.

Every adaptor hands the library the same trained network, training examples without augmentation, queries and margin,
and returns its scores with the sign of `answer.Answer.scores`. Settings are the library's defaults or those of its
authors' examples for image classifiers; where one had to be chosen, the adaptor says so.
"""
