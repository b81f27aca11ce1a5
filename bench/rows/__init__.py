"""The rows of the table, in the order of the targets."""
