"""What everything on Spark uses: options, file systems, scratch folders, Java, the code on executors."""
