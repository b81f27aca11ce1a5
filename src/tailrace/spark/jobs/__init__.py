"""Jobs over whole stores: check every checksum, make indexes anew, count what is in a queue.

A job cuts its work into items that stand by themselves, has them done (`running.py`), and puts
together what came of them. Spark schedules, where there is enough to do; the data stays in the
process that reads it.
"""
