"""Dead letters: messages that failed for good, in the store and in the journal."""
