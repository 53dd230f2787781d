"""Sites: the single-threaded executors of partitions, in processes of their own or inline, and their supervisor."""
