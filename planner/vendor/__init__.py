"""Groups that one call of a vendor's library computes too."""
