"""The folder where Spark finds the data source `cmdlog`: whatever is called `pyspark_*` on the path of its Pythons."""
