"""Drawing tokens: options, random numbers by position, log-probabilities."""
