"""Results of softmax and log-softmax over rows."""
