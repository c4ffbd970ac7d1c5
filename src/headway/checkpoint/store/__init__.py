"""A checkpoint store. A checkpoint exists completely or not at all.

    STORE/step-0000000100/           committed: .metadata, __RANK_0.distcp, manifest.json
    STORE/.draft-0000000100-SAVEID/  being written
    STORE/.aside-0000000100-SAVEID/  committed, and replaced by another save of its step
    STORE/.trash-0000000100-TOKEN/   being deleted
    STORE/latest                     the name of the latest committed one

Behind a URL nothing can be renamed: a save is written to step-0000000100-SAVEID/ from the start,
and is committed once its manifest exists, which is written last.

The latest checkpoint is the one that was committed last, whatever its step and the clock say: a job
that went back to an earlier step continues from there.
"""
