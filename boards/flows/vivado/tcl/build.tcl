# The whole build, without a question:  vivado -mode batch -source build.tcl
# The folder may lie anywhere. What is made goes to work/, what is wanted of it at the end to results/.
# A run that was interrupted goes on behind its synthesis, if that had come to its end; otherwise it begins anew.

set here [file dirname [file normalize [info script]]]
source [file join $here settings.tcl]
source [file join $here ip package.tcl]
source [file join $here processing_system.tcl]
source [file join $here block_design.tcl]

set step 0
proc step {what} {
    global step
    incr step
    puts "edgedec: step $step of 7: $what"
    flush stdout
}

proc check_version {} {
    global settings
    set found [version -short]
    if {[package vcompare [regsub {[^0-9.].*$} $found {}] $settings(minimum_vivado)] < 0} {
        error "edgedec: this is Vivado $found, the project needs $settings(minimum_vivado) or newer"
    }
}

# An IP of Vivado's own catalogue in the newest version that this Vivado has.
proc newest {name} {
    set found [lsort -dictionary [get_ipdefs -filter "VLNV =~ xilinx.com:ip:$name:*"]]
    if {[llength $found] == 0} {
        error "edgedec: this Vivado has no IP xilinx.com:ip:$name; install the device family of the board"
    }
    return [lindex $found end]
}

proc check_run {run} {
    set progress [get_property PROGRESS [get_runs $run]]
    if {$progress ne "100%"} {
        set directory [get_property DIRECTORY [get_runs $run]]
        error "edgedec: $run ended at $progress, see [file join $directory runme.log]"
    }
}

proc write_file {path text} {
    set file [open $path w]
    puts $file $text
    close $file
}

proc read_file {path} {
    if {![file exists $path]} {
        return ""
    }
    set file [open $path r]
    set text [string trim [read $file]]
    close $file
    return $text
}

# The first of the files that match one of these patterns.
proc find_file {what args} {
    foreach pattern $args {
        set found [lsort [glob -nocomplain -types f {*}$pattern]]
        if {[llength $found] > 0} {
            return [lindex $found 0]
        }
    }
    error "edgedec: Vivado left no $what"
}

proc make_project {here work} {
    global settings
    step "packaging the accelerator"
    file delete -force -- $work
    file mkdir $work
    package_accelerator $here $work
    step "making the project"
    create_project -force $settings(project) [file join $work project] -part $settings(part)
    use_board_part
    set_property ip_repo_paths [list [file join $work repository]] [current_project]
    update_ip_catalog -rebuild
    step "making the block design"
    make_block_design
    write_file [file join $work clock_mhz] [fabric_clock_mhz]
    add_files -fileset constrs_1 -norecurse [list [file join $here constraints board.xdc]]
    set_property USED_IN_SYNTHESIS false [get_files board.xdc]
}

# Board files say how the processing system's memory and pins are set up. The boot program has done that when the fabric is
# loaded, so the build does without them where they are not installed.
proc use_board_part {} {
    global settings
    set settings(preset) 0
    if {$settings(board_part) ne ""} {
        set found [lsort -dictionary [get_board_parts -quiet $settings(board_part)]]
        if {[llength $found] > 0} {
            set_property board_part [lindex $found end] [current_project]
            set settings(preset) 1
        }
    }
}

proc synthesise {work jobs} {
    global settings
    step "synthesis"
    launch_runs synth_1 -jobs $jobs
    wait_on_run synth_1
    check_run synth_1
    write_file [file join $work synthesised] $settings(key)
}

proc implement {jobs} {
    step "placement and routing"
    set run [get_runs impl_1]
    set_property STEPS.PHYS_OPT_DESIGN.IS_ENABLED true $run
    set_property STEPS.POST_ROUTE_PHYS_OPT_DESIGN.IS_ENABLED true $run
    launch_runs impl_1 -to_step write_bitstream -jobs $jobs
    wait_on_run impl_1
    check_run impl_1
}

# All of it appears at once under its name.
proc collect {here work} {
    global settings
    step "reports and results"
    set part [file join $here results.part]
    file delete -force -- $part
    file mkdir $part
    open_run impl_1
    report_timing_summary -file [file join $part timing_summary.rpt]
    report_utilization -file [file join $part utilization.rpt]
    report_utilization -hierarchical -file [file join $part utilization_hierarchical.rpt]
    report_power -file [file join $part power.rpt]
    write_hw_platform -fixed -include_bit -force -file [file join $part accelerator.xsa]
    set implementation [get_property DIRECTORY [get_runs impl_1]]
    file copy -force -- [find_file bitstream [list -directory $implementation *.bit]] [file join $part accelerator.bit]
    set tail [file join sources_1 bd $settings(design) hw_handoff $settings(design).hwh]
    set project [file join $work project]
    set handoff [find_file .hwh [list -directory $project $settings(project).gen/$tail] \
        [list -directory $project $settings(project).srcs/$tail]]
    file copy -force -- $handoff [file join $part accelerator.hwh]
    write_file [file join $part facts.txt] [join [list "key $settings(key)" "vivado [version -short]" \
        "clock_mhz [read_file [file join $work clock_mhz]]" \
        "board_part [get_property board_part [current_project]]"] "\n"]
    set results [file join $here results]
    file delete -force -- $results
    file rename -- $part $results
}

proc main {here} {
    global settings
    global step
    check_version
    set work [file join $here work]
    set jobs $settings(jobs)
    set project [file join $work project $settings(project).xpr]
    if {[read_file [file join $work synthesised]] eq $settings(key) && [file exists $project]} {
        set step 3
        step "opening the project that was synthesised before"
        open_project $project
        open_bd_design [get_files $settings(design).bd]
        reset_run impl_1
    } else {
        make_project $here $work
        synthesise $work $jobs
    }
    set step 4
    implement $jobs
    set step 5
    collect $here $work
    step "done"
}

main $here
