"""What finds wrong labels from a pretrained network: the same features, folds and fine-tunings for every method.

sets         which data, at what resolution, with which wrong labels
recipes      everything an outcome depends on beside data, noise, method and seed
pictures     images, their features and nearest neighbours: what no label changes, computed once for all methods
task         labels of which some are wrong, on such images
kept         out-of-fold probabilities on disk, to be scored where cleanlab is
finetuning   the whole network trained further
methods      one file a family of methods
"""
