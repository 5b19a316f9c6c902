"""The methods that SG-OIF is compared with: one file each, with its paper and formula."""
