"""The methods, one file a family: each is called with a task and returns outcomes by the names of its methods."""
