"""What every other part stands on: types, data, losses, files, names; needs torch and numpy only."""
