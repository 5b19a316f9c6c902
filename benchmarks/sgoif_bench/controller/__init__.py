"""The engine as the paper prints it, forms of its stability controller, and what each of its parts is worth."""
