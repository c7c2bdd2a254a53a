"""Does each rule have a test that notices when it is broken? See `make mutations`."""
