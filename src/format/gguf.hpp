// A GGUF file (versions 2 and 3, one or many parts) as validated metadata and tensors.
#pragma once
// (interface sketch; see the owner)
