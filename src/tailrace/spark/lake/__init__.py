"""Archives of queues: plain Parquet files of what a log had, and the way back."""
