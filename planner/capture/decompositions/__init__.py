"""ATen operations without a row in the table, written as operations that have one."""
