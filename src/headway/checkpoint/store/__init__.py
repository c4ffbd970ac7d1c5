"""Checkpoints on disk: a checkpoint is there whole, or it is not there.

    STORE/step-0000000100/           committed: .metadata, __RANK_0.distcp, manifest.json
    STORE/.draft-0000000100-SAVEID/  being written
    STORE/.aside-0000000100-SAVEID/  committed, and replaced by another save of its step
    STORE/.trash-0000000100-TOKEN/   being deleted
    STORE/latest                     the name of the newest committed one

Behind a URL nothing can be renamed: a save is written to step-0000000100-SAVEID/ from the start,
and is committed once its manifest is there, which is written last.

The newest is the one that was committed last, whatever its step and the clock say: a job that went
back and took another way goes on from there.
"""
