"""Short and long runs with few and many anchors: whether influence and the label score serve them all."""
