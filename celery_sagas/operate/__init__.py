"""What operators see of the instances, and what is said to them: free of the command line, which shows it."""
