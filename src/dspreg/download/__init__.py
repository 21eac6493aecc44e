"""Files from other machines: downloaded whole or not at all, unpacked safely, listed with their checksums."""
