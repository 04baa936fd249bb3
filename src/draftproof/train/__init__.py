"""Training of drafters: the data a target writes itself, its stored features, the loss, the loop, the evaluation."""
