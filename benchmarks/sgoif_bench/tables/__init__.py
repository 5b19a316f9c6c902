"""Result files as tables: which lines can be compared, means and ties over seeds, Markdown and LaTeX."""
