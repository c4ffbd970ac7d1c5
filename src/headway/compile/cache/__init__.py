"""The compile cache that jobs share: archives in a store, the local folder, and what moves between them."""
