"""Pipelines: queries of the configuration that run on, from a queue to a queue or to files.

definition   what a pipeline is, from the configuration; no Spark
avro         Avro, decoded where a queue is read
decoding     bytes to columns, and what does not fit
planning     inputs → views → the statement → the rows of the target
homes        what a pipeline keeps in the store: its checkpoint, what that was made for
files        rows to a folder of files, exactly once
running      the queries of a pipeline, at work
chains       pipelines that read what others write
status       how it goes, for other processes
"""
