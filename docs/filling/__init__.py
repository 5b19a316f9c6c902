"""What stands in the tables of each benchmark page: a module per page, with its PAGE and its TABLES by name."""
