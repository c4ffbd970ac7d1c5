#!/bin/sh
# This script was created by sbatch --wrap.

exec sleep 300
