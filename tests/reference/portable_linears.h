// The linears of quantised blocks in the stock implementation's portable form, as plain loops over the stored
// tensors of a reference file ("w.LAYER.*"): no decoder, quantiser or op of the engine.
#pragma once

#include <string>

#include "io/safetensors.h"
#include "reference/reference_model.h"

namespace h3s::reference {

// Block linears of `format` ("float8_e4m3fn", "mxfp8", "nvfp4", "asym_w4a8_int8", "convrot_w4a4"). The file
// must outlive the result.
BlockLinear portable_linears(const io::SafetensorsReader& file, const std::string& format);

}  // namespace h3s::reference
