"""The first call of a process without Dynamo: captures that an earlier process remembered."""
