"""The cost model beside what was measured, and a device's profile fitted to it."""
