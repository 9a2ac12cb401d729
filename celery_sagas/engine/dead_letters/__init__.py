"""Dead letters: messages that have failed permanently, in the store and in the journal."""
