"""Methods of others that no library here has, written from their papers; none of them is needed by anything else."""
